"""Records to events, on every path that reads them."""
