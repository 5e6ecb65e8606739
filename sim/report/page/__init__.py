"""Results as one HTML file each, which needs no network: what stands on a page, block by block, and the templates that show it."""
