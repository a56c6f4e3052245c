"""One file a loss: unit embeddings and labels in, a scalar out. No files, no memory, no device moves.

    from lookalike.losses.supcon import SupCon

    loss = SupCon(temperature=0.1)(embeddings, labels)

Those here are computed by pytorch-metric-learning, which is imported when the first one is made.
"""
