"""What a run costs by its sizes."""
