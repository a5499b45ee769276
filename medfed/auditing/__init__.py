"""Privacy audit: measure on a site's own images how much the statistics that it would share reveal about them."""
