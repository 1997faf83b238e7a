"""N peers and a bootstrap node as processes of this machine: started, watched, judged and reported."""
