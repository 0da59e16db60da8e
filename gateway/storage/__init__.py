"""Where pages live: files and one SQLite catalogue for each partition, behind one contract.

The order of writes is the whole recovery protocol: page bytes written and synced, then the catalogue's
transaction, then (by the caller) the acknowledgement to the log. On start a page file is cut back to the
length that the catalogue has committed.
"""
