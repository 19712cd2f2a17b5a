"""Messages, links and shared rows between processes."""
