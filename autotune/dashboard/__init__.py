"""The web page and the JSON API over a store, served by `autotune dashboard`."""
