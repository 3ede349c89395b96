"""Vendors that ship with hamipy; each is found by its entry point, as any third party's is."""
