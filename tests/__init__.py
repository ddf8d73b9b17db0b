"""Tests of heddle; a package, because some distributions install a `tests` package of their own."""
