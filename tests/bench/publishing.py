def publishing(folder):
    yield


put = publishing
