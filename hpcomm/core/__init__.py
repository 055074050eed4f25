"""What one operation is: element types, reductions, buffers, signatures, requests. Begin with README.md."""
