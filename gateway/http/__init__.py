"""The web server: an aiohttp application, one module for each family of resources.

It reads feeds through the storage contract and publishes through the `Publisher` protocol; it knows
nothing of AMQP.
"""
