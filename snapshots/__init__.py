"""Snapshots: Spark jobs that make Delta tables and snapshot parts of the feeds that a gateway has written.

Any Spark program can read feeds with `snapshots.webfeed`. Nothing here knows the web server or AMQP: the jobs
meet the gateway in the form of its pages and in that of its snapshots, which `gateway.core` defines.
"""
