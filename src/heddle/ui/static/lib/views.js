// Views that hold each other: a chat shows values, a value may be a chat. Who starts the pages says where each one is.
const places = new Map();

/** Say how the module of a view is loaded. */
export const provideView = (name, load) => places.set(name, load);

/** The module of a view. */
export const loadView = (name) => places.get(name)();
