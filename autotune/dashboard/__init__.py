"""Looks at a store in the browser, and over HTTP as JSON: `autotune dashboard`."""
