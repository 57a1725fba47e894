"""What holds for every request, whatever its route: pure ASGI, one concern for each file."""
