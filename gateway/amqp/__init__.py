"""AMQP 1.0: types and sections, proton's engine inside asyncio, and what a gateway does with them.

codec, sections, fingerprint   bytes and values
driver, client                 connections
dialects                       how a kind of broker names partitions and offsets
consumer, ingest, repair       from a partition of the log into its feed
sender, publisher, visibility  into the log, and back to whoever waits for it
"""
