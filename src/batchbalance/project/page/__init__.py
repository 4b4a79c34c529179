"""Label in the browser: a small server for one project, and the page that it serves."""
