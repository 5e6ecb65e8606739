"""Figures of results as plotly's own JSON, a file a subject: made from summaries and records, free of files and of pages."""
