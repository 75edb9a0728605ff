"""What each process of beat, of a worker and of the API has."""
