"""The implementation of `import erosion`; use the names in `erosion` itself."""
