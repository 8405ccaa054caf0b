"""Optimisers: update lists of arrays in place, one launch per list."""
from ._adagrad import ADAGRAD, adagrad_step
from ._adam import ADAM, ADAMW, adam_step, adamw_step
from ._clip import CLIP_GRAD_NORM, GRAD_NORM, clip_grad_norm, grad_norm
from ._lamb import LAMB, lamb_step
from ._lion import LION, lion_step
from ._norm_problem import NormProblem
from ._problem import StepProblem
from ._rmsprop import RMSPROP, rmsprop_step
from ._sgd import SGD, sgd_step

__all__ = ["ADAGRAD", "ADAM", "ADAMW", "CLIP_GRAD_NORM", "GRAD_NORM", "LAMB", "LION", "RMSPROP", "SGD", "NormProblem", "StepProblem",
           "adagrad_step", "adam_step", "adamw_step", "clip_grad_norm", "grad_norm", "lamb_step", "lion_step", "rmsprop_step", "sgd_step"]
