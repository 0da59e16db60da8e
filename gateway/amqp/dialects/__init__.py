"""One module for each kind of broker: how it names its partitions and offsets, and how to start from one."""
