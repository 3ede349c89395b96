"""Fails when it is imported, as a package whose driver library is missing."""

raise OSError("libacme.so: cannot open shared object file")
