// An element that shows markup and patches it in place: unchanged nodes are kept, so that nothing flickers, the focus
// stays, and the style sheet can animate moving parts. The server has already escaped all text in the markup.
const KEY = "data-key";

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute(KEY) : null;
}

function sameNode(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
}

function patchNode(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) {
    const value = fresh.getAttribute(name);
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  patchChildren(old, fresh);
}

function patchChildren(old, fresh) {
  const keyed = new Map([...old.children].filter(keyOf).map((child) => [keyOf(child), child]));
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const key = keyOf(next);
    const found = key === null ? at : keyed.get(key);
    if (!found || !sameNode(found, next)) {
      old.insertBefore(next, at);
      continue;
    }
    if (found === at) at = at.nextSibling;
    else old.insertBefore(found, at);
    patchNode(found, next);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

export default {
  template: '<div @click="clicked" @change="changed"></div>',
  props: { markup: String },
  mounted() {
    this.show(this.markup);
  },
  watch: {
    markup(text) {
      this.show(text);
    },
  },
  methods: {
    show(text) {
      const fresh = document.createElement("template");
      fresh.innerHTML = text;
      patchChildren(this.$el, fresh.content);
    },
    clicked(event) {
      const target = event.target.closest("button[data-act]");
      if (target) this.$emit("act", target.dataset.act);
    },
    changed(event) {
      const target = event.target.closest("select[data-act], input[data-act]");
      if (target) this.$emit("act", target.dataset.act + ":" + (target.type === "checkbox" ? target.checked : target.value));
    },
  },
};
