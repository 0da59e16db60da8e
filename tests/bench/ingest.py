def ingest(folder):
    yield


put = ingest
