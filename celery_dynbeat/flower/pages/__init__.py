"""One module for each page. A page reads, and never writes."""
