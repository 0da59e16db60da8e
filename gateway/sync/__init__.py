"""Readers of feeds: what a client does with any server of the draft, ours or another's."""
