import torch
print(torch.ones(3, device="dtorch") * 2)
