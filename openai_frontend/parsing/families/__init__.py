"""Rows of families, one file per kind of syntax; the tables name them all."""
