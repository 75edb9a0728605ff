"""What a page can change: POST requests, followed by a redirect."""
