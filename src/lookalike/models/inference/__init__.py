"""One route from images to vectors.

``inputs`` turns whatever the caller passes into a stream of images, ``pipeline`` decodes them ahead of the model and
batches them, ``runtimes`` chooses what runs the model (torch, OpenVINO or ONNX Runtime). ``Embedder.encode``,
``Embedder.features``, the feature cache, indexing and the service all take this route.
"""
