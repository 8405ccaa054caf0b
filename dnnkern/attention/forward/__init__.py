"""Attention forward: from scores to outputs and log-sum-exps."""
