"""What training minimises: the loss on labels, and beside it the distance to a teacher's answers."""

import torch.nn.functional as F
from torch import Tensor


def label_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy; `labels` are class numbers [B], or shares of classes [B, classes] where samples were mixed.

    Example:
        >>> import torch
        >>> label_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).item() == label_loss(
        ...     torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        ... ).item()
        True
    """
    return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)


def distillation_loss(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """`T² · KL(teacher/T ‖ student/T)`, averaged over samples: T² keeps its gradients as large as those of the labels.

    Example:
        >>> import torch
        >>> distillation_loss(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]]), 2.0).item()
        0.0
    """
    student = F.log_softmax(logits.float() / temperature, dim=-1)
    target = F.log_softmax(teacher.float() / temperature, dim=-1)
    return temperature**2 * F.kl_div(student, target, log_target=True, reduction="batchmean")
