"""What we compare with: the barest programs that do the same work."""
