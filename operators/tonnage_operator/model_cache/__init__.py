"""ModelCache: a model's files, and images, on nodes before anything needs them."""
