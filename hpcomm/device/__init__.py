"""Interface to a GPU driver: CUDA's own and a model of it; device arrays. Begin with README.md."""
