"""The paper's method: edges between draws, the closed form of Δ, greedy, clustering and the paper's estimators."""
