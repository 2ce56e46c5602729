"""Blind comparison of two systems by human raters: a web page, ratings that are never lost, significance tests."""
