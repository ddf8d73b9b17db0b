def print_publishing(groups, folder, count):
    raise NotImplementedError
