"""Networks on one machine: hosts in namespaces, with links as slow and as far apart as wanted."""
