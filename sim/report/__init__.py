"""Results as text, tables, plots, pages and folders."""
