"""The Web Event Sourcing gateway: an AMQP event log in, feeds that curl can read out."""

__version__ = "0.1.0"
