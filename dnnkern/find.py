"""stub"""
def best_known(*a): return None
