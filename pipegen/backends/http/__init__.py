"""The HTTP client of routes to servers: connections, limits, deadlines and streams."""
