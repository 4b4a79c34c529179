"""The paper and nothing else: edges between draws, the closed form of Δ, greedy, clustering, its estimators."""
