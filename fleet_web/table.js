// A table of text: data from devices is never interpreted as HTML.
export default {
  template: `
    <div class="table-frame" role="region" tabindex="0" :aria-label="caption">
      <table class="rows">
        <caption class="unseen">{{ caption }}</caption>
        <thead><tr>
          <th v-for="column in columns" :key="column.key" scope="col" :class="column.number ? 'number' : ''"
              :aria-sort="column.key === sort ? (down ? 'descending' : 'ascending') : null">
            <button v-if="column.sortable" type="button" @click="$emit('sort', column.key)"
              >{{ column.label }}<span aria-hidden="true">{{ column.key === sort ? (down ? ' ▾' : ' ▴') : '' }}</span>
            </button>
            <template v-else>{{ column.label }}</template>
          </th>
        </tr></thead>
        <tbody>
          <tr v-for="row in rows" :key="row.key">
            <td v-for="(cell, at) in row.cells" :key="at" :data-label="columns[at].label"
                :class="[cell.tone || '', columns[at].number ? 'number' : '']"
              ><a v-if="cell.href" :href="cell.href"><bdi>{{ cell.text }}</bdi></a
              ><bdi v-else>{{ cell.text }}</bdi></td>
          </tr>
          <tr v-if="!rows.length"><td :colspan="columns.length" class="dim">{{ empty }}</td></tr>
        </tbody>
      </table>
    </div>`,
  props: { caption: String, columns: Array, rows: Array, sort: String, down: Boolean, empty: String },
  emits: ["sort"],
};
