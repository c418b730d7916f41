"""One module a format: how it is read without unpickling, when it is complete, and how it is verified."""
