"""Vendor packages of all sorts, found by their entry points as any third party's."""
