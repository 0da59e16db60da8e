"""The event log node: an AMQP 1.0 server that keeps partitioned logs durably on disk.

It is the reference implementation of the OASIS event-streams extensions, csprd01. `server.Node` is all
that the outside needs, with the settings in `settings`.

    settings, errors      what can be set, what can go wrong
    lock, store, writer   the durable log: files, reading, group commit
    partitioning          which partition an event belongs to
    filters               from which event on, and which events, a receiver wants
    consumers, producers  a link that the node feeds, a link that feeds the node
    links                 what an attach asks for, and whether it gets it
    server                connections, start and stop
"""
