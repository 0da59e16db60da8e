"""What is true of events, pages and feeds wherever they are stored or sent: pure functions and values.

Nothing here opens a file, a socket or a clock; bytes, values and times come in as arguments.
"""
